"""From stored entries to whole messages: markers, aborted transactions and chunks are dealt with, compaction undone."""
