"""The objects that Apache Pulsar's offloaders write: blocks of entries, indexes, names of objects, user metadata."""
