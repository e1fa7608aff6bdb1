"""A sign-in at an identity provider, between its two requests."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_TRY_LATER = ("server_error", "temporarily_unavailable")


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """A sign-in that a browser has begun. `target` is the path to which it leads.

    The other fields are random. `state` comes back with the answer, `nonce` in the ID token, and
    the code is exchanged with the `code_verifier`.
    """

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)
    target: str

    def is_answered_by(self, answer: Mapping[str, str]) -> bool:
        """Return whether the answer has the state of the attempt."""
        return hmac.compare_digest(self.state.encode(), answer.get("state", "").encode())


def is_mixed_up(answer: Mapping[str, str], issuer: str, *, names_itself: bool) -> bool:
    """Return whether the answer is of another issuer (RFC 9207).

    An issuer that announces to name itself does so in each answer.
    """
    return answer["iss"] != issuer if "iss" in answer else names_itself


def error_code(text: object) -> str:
    """Return the code of an error that an issuer reports, or a word for what is none."""
    return text if isinstance(text, str) and _ERROR_CODE.fullmatch(text) else "unknown_error"


def may_pass(code: str) -> bool:
    """Return whether the error says that the issuer may accept the same request later."""
    return code in _TRY_LATER


def words_for(code: str) -> str:
    """Return the words in which a person is told the error."""
    if code == "access_denied":
        return "The identity provider did not sign you in, or its dialog was cancelled (access_denied)."
    if code == "invalid_grant":
        return "The identity provider no longer accepts this sign-in (invalid_grant). Start again."
    return (
        f"The identity provider refused the sign-in ({code}). Start again, or tell an operator of the mesh."
    )
