"""What makes an engine fast on a CPU. Read products, few_rows."""
