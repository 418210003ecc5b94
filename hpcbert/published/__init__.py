"""The published record: what others published of BERT's throughput, as data with their sources."""
