"""The connections of HTTP servers: how many, how slow, and how much of memory they take."""
