"""From whole entries to Arrow record batches, with no object per message."""
