"""One module a version of the schema, in the order of their `down_revision`."""
