"""Units, profile, measuring, surrogate, and the Gymnasium environments over them."""
