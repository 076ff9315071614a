"""The page that `gemmgen serve` shows: a problem, a shape, a config whose levers are moved, and what comes of it.

A view is its query string (`query`), read into what it asks for (`position`); `controls` are what moves it, `panes` what is shown of
it, `page` both as HTML, `server` who answers.
"""
