"""Subjects: the systems that are driven and judged.

`subject`, `picker` and `store` are the reference engine's; `system` is what anybody else's system says of itself, and
`own_run` drives it. Nothing is imported here: `system` is also read by interpreters that have none of the rest.
"""
