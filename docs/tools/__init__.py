"""What makes the parts of the documentation that come from code: `python -m docs.tools.steps`, and mkdocs' hooks."""
