"""What users may set on the data source."""
