"""Who hosts which blocks: pure arithmetic over what the directory tells."""
