"""A package, so that pytest calls these modules `tests.…`: after the folder `operator` they would hide the standard
library's module of that name."""
