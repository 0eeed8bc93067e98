"""How a schema is refused: by the path and the name of what is not enforced."""

from __future__ import annotations

from smcprog.errors import GrammarError

_ON_THE_VALUE = "condition(...) on the parsed value says it"
_REMEDIES = {
    "not": _ON_THE_VALUE,
    "contains": _ON_THE_VALUE,
    "minContains": _ON_THE_VALUE,
    "maxContains": _ON_THE_VALUE,
    "uniqueItems": _ON_THE_VALUE,
    "if": "write the cases as anyOf",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "dependencies": "write the cases as anyOf",
    "propertyNames": "use patternProperties with additionalProperties: false",
    "unevaluatedProperties": "list all properties and use additionalProperties: false",
    "unevaluatedItems": "use prefixItems and items",
    "additionalItems": "use prefixItems and items",
    "$recursiveRef": "use $ref",
    "nullable": 'use "type": [..., "null"]',
}


def schema_error(path: str, reason: str) -> GrammarError:
    """The error of a place in a schema."""
    return GrammarError(f"json_schema: {path}: {reason}")


class Refusals:
    """What one schema holds that is not enforced: an error, or where not ``strict``, `ignored`."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self.ignored: list[str] = []

    def unsupported(self, path: str, keyword: str, reason: str = "is not supported") -> None:
        """Refuse a keyword.

        Raises:
            GrammarError: if strict.
        """
        remedy = f"; {_REMEDIES[keyword]}" if keyword in _REMEDIES else ""
        error = schema_error(path, f'the keyword "{keyword}" {reason}{remedy}')
        if self._strict:
            raise error
        self.ignored.append(f"{error}; it is not enforced")
