"""Generated from the definitions in `proto` by `tools/generate_protobuf.py`; not edited by hand."""
