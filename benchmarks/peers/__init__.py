"""AutoPrec beside other tools that choose a precision for each layer."""
