"""The answers to "is this more than noise?"."""
