"""The live page and everything else served over HTTP."""
