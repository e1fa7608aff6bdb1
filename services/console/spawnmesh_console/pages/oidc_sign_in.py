"""`/sign-in/oidc` and `/sign-in/oidc/callback`: sign in at an identity provider."""

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from spawnmesh_console.clients.oidc import IdentityProviderDown, SignInRefused
from spawnmesh_console.web.attempt_cookie import new_attempt
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.sign_in_page import own_path, sign_in_page, signed_in_with
from spawnmesh_console.web.visit import see_other

log = structlog.get_logger()

_OTHER_SITES = ("cross-site", "same-site")
_DOWN = "The identity provider does not answer. Nothing was lost: try again in a moment."
_OVER = "This sign-in was used already, or took longer than ten minutes. Start again."


async def begin_sign_in(request: Request) -> Response:
    """Send the person to the provider. A link of another site leads to the sign-in page instead."""
    deps: Dependencies = request.app.state.dependencies
    target = own_path(request.query_params.get("next", ""))
    if deps.provider is None:
        return _no_provider()
    if request.headers.get("sec-fetch-site") in _OTHER_SITES:
        return see_other("/sign-in", {"next": target})
    attempt = new_attempt(target)
    try:
        response = RedirectResponse(await deps.provider.authorization_url(attempt), 303)
    except IdentityProviderDown as error:
        return _is_down(deps, target, error)
    deps.attempts.keep(response, attempt)
    return response


async def end_sign_in(request: Request) -> Response:
    """Sign the person in whom the identity provider sends back. An attempt has one answer."""
    deps: Dependencies = request.app.state.dependencies
    if deps.provider is None:
        return _no_provider()
    response = await _answered(request, deps)
    deps.attempts.delete(response)
    return response


async def _answered(request: Request, deps: Dependencies) -> Response:
    assert deps.provider is not None
    attempt = deps.attempts.attempt_in(request.cookies)
    if attempt is None:
        return sign_in_page(deps, "/", problem=_OVER)
    try:
        token = await deps.provider.token_of(attempt, request.query_params)
    except SignInRefused as refusal:
        return sign_in_page(deps, attempt.target, problem=str(refusal))
    except IdentityProviderDown as error:
        return _is_down(deps, attempt.target, error)
    return await signed_in_with(deps, token, attempt.target, is_from_provider=True)


def _is_down(deps: Dependencies, target: str, error: IdentityProviderDown) -> Response:
    log.warning("identity_provider_down", why=str(error))
    return sign_in_page(deps, target, problem=_DOWN, status=503)


def _no_provider() -> Response:
    return PlainTextResponse("The console has no identity provider.\n", 404)
