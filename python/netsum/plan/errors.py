class PlanError(Exception):
    """A topology or a request that cannot be planned for; the message says what is wrong, where, and what to do."""
