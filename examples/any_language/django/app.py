"""A chat whose users log in with Django. Simurgh keeps the sockets, and asks hooks.py who connects,
joins and writes. One file in place of a project: settings, pages and users.
"""

import os
import sys
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command, execute_from_command_line
from django.shortcuts import redirect
from django.urls import include, path
from django.views.decorators.http import require_POST

HERE = Path(__file__).resolve().parent
CONTRIB = "django.contrib."

settings.configure(
    DEBUG=True,
    SECRET_KEY="for this example only",
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[CONTRIB + "auth", CONTRIB + "contenttypes", CONTRIB + "sessions"],
    MIDDLEWARE=[
        CONTRIB + "sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        CONTRIB + "auth.middleware.AuthenticationMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [HERE / "templates"],
        "OPTIONS": {"context_processors": [CONTRIB + "auth.context_processors.auth"]},
    }],
    DATABASES={"default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", HERE / "db.sqlite3"),
    }},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    LOGIN_REDIRECT_URL="/",
)
django.setup()

# These need the settings.
from django.contrib.auth import logout  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.auth.views import LoginView  # noqa: E402

import hooks  # noqa: E402


@require_POST
def log_out(request):
    name = request.user.username
    logout(request)
    hooks.disconnect(name)  # after the session: a client that returns at once finds none
    return redirect("/")


page = LoginView.as_view(template_name="room.html", extra_context={"simurgh": hooks.SIMURGH})
urlpatterns = [
    path("", page),
    path("logout", log_out),
    path("simurgh/", include(hooks)),
]


def make_users():
    """Ada is staff, Bob is not. Their password is `demo`."""
    call_command("migrate", verbosity=0)
    for name in ["ada", "bob"]:
        if not User.objects.filter(username=name).exists():
            User.objects.create_user(name, password="demo", is_staff=name == "ada")


if __name__ == "__main__":
    make_users()
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:3000"
    execute_from_command_line([sys.argv[0], "runserver", "--noreload", address])
