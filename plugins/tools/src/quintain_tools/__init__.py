"""Tools for policies: the call `formats` of model families, and `mcp` servers."""
