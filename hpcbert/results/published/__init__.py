"""The published record: others' results on BERT's throughput, as data with their sources."""
