"""Programs that a job runs; they need nothing else of hpcbert."""
