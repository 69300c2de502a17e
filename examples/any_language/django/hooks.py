"""What Simurgh asks. Copy this file into a project, and add `urlpatterns` below `simurgh/`."""

import functools
import json
import os
import urllib.request

from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from standardwebhooks import Webhook, WebhookVerificationError

SIMURGH = os.environ.get("REALTIME_URL", "http://127.0.0.1:4000")


def question(view):
    """Calls the view with the verified question. The signature takes the place of the CSRF token."""

    @csrf_exempt
    @functools.wraps(view)
    def verified(request):
        try:
            body = Webhook(os.environ["HOOK_SECRET"]).verify(request.body, dict(request.headers))
        except WebhookVerificationError as error:
            return HttpResponse(str(error), status=400)
        return view(request, body["data"])

    return verified


def refuse(reason, status=403):
    return JsonResponse({"reason": reason}, status=status)


@question
def connect(request, ask):
    user = request.user  # the session of the browser: Simurgh forwards its cookie
    if not user.is_authenticated:
        return refuse("please log in", status=401)
    return JsonResponse(
        {"user": user.username, "claims": {"staff": user.is_staff}, "cache_for": 600}
    )


@question
def join(request, ask):
    if ask["topic"] == "rooms:staff" and not ask["claims"]["staff"]:
        return refuse("staff only")
    return JsonResponse({"reply": {"title": ask["topic"]}})


@question
def message(request, ask):
    user, payload = ask["user"], ask["payload"]
    if payload.get("from", user) != user:
        return refuse(f"you are {user}")
    return JsonResponse({"payload": {"from": user, "body": str(payload.get("body"))[:500]}})


def disconnect(user):
    """Closes all sockets of a user, and voids the cached answers for them."""
    body = json.dumps({"user": user}).encode()
    headers = {"authorization": "Bearer " + os.environ["SIMURGH_API_TOKEN"]}
    urllib.request.urlopen(urllib.request.Request(SIMURGH + "/api/disconnect", body, headers))


urlpatterns = [path("connect", connect), path("join", join), path("message", message)]
