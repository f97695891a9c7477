class PlanError(Exception):
    """A topology or a request without a plan; the message says what is wrong, where, and what to do."""
