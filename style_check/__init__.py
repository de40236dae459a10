"""The word check of `make lint`: it reads the styles under ``styles/`` over what people read in this repository.

The styles are Vale's, so vale can run them too (``vale .``). This checker needs only Python, and reads more than vale:
string literals, help texts and sample output. It knows three kinds of rule: existence, substitution and occurrence.

Not read: a string of one word (a key, a column), a regular expression, SQL and JSON. Of the names in the code those are
read that :mod:`style_check.names` lists.
"""
