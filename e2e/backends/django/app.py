"""An application of Django that answers all questions, for the tests. Gunicorn serves it."""

import collections
import functools
import os

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from standardwebhooks import Webhook, WebhookVerificationError

CONTRIB = "django.contrib."
WEBHOOK = Webhook(os.environ["HOOK_SECRET"])
SEEN = collections.Counter()

settings.configure(
    SECRET_KEY="of a test",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[CONTRIB + "auth", CONTRIB + "contenttypes", CONTRIB + "sessions"],
    MIDDLEWARE=[
        CONTRIB + "sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        CONTRIB + "auth.middleware.AuthenticationMiddleware",
    ],
    DATABASES={"default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(os.environ["APP_DIRECTORY"], "db.sqlite3"),
    }},
)
django.setup()
call_command("migrate", verbosity=0)

from django.contrib.auth import login as start_session  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402


def login(request, name):
    start_session(request, User.objects.get_or_create(username=name)[0])
    return HttpResponse("hello")


def question(view):
    @functools.wraps(view)
    def verified(request):
        try:
            body = WEBHOOK.verify(request.body, dict(request.headers))
        except WebhookVerificationError as error:
            return HttpResponse(str(error), status=400)
        SEEN[view.__name__] += 1
        return view(request, body["data"])

    return verified


@question
def connect(request, ask):
    if not request.user.is_authenticated:
        return JsonResponse({"reason": "please log in"}, status=401)
    answer = {"user": request.user.username, "claims": {"staff": request.user.username == "ada"}}
    if "cache" in ask["params"]:
        answer["cache_for"] = 60
    return JsonResponse(answer)


@question
def join(request, ask):
    if ask["topic"] == "rooms:private":
        return JsonResponse({"reason": "private"}, status=403)
    role = "owner" if ask["claims"]["staff"] else "guest"
    return JsonResponse({"reply": {"title": ask["topic"]}, "assigns": {"role": role}})


@question
def message(request, ask):
    user, role, body = ask["user"], ask["assigns"]["role"], ask["payload"].get("body")
    if body == "rude":
        return JsonResponse({"reason": "be polite"}, status=403)
    if body == "quiet":
        return JsonResponse({"broadcast": False, "reply": {"only": "you"}})
    answer = {"payload": {"from": user, "role": role, "body": body}, "reply": {"stored": 1}}
    if body == "twice":
        payload = {"from": "the application"}
        answer["messages"] = [{"topic": ask["topic"], "event": "notice", "payload": payload}]
    return JsonResponse(answer)


urlpatterns = [
    path("login/<name>", login),
    path("seen", lambda request: JsonResponse(SEEN)),
    *(path("simurgh/" + view.__name__, csrf_exempt(view)) for view in [connect, join, message]),
    # As of somebody who has forgotten the exemption.
    path("protected/connect", connect),
]
application = get_wsgi_application()
