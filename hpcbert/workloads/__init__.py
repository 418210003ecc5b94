"""Programs that a job runs; each is one file that can be mounted into an image by itself."""
