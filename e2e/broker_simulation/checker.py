from e2e.broker_simulation.history import *
def check(history): return [f"stuck: {s}" for s in history.stuck] + [f"wrong: {s}" for s in history.wrong]
def undelivered(subscription, log):
    got = {event.entry.position for event in subscription.events if isinstance(event, Delivered)}
    return [entry for entry in log if entry.position not in got]
