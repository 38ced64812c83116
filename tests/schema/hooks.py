"""Requests that would only wait are not made to: a worker without jobs, or a client that prefers to wait for an end."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.operation.path == "/v1/worker/reserve" and isinstance(case.body, dict):
        # What is no duration stays: it has to be refused.
        if case.body.get("wait") not in (None, "") and str(case.body["wait"])[:1].isdigit():
            case.body["wait"] = "10ms"
    if case.headers:
        for name in [name for name in case.headers if name.lower() == "prefer"]:
            case.headers[name] = "wait=0"
