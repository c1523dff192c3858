"""The custom resources: their types, from which the CRDs are generated."""
