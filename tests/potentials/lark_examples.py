"""Lark grammars as people write them, each with some of its texts."""

EXPRESSION = """
?start: test
?test: or_test ["if" or_test "else" test] | "lambda" [NAME ("," NAME)*] ":" test
?or_test: and_test ("or" and_test)*
?and_test: not_test ("and" not_test)*
?not_test: "not" not_test | comparison
?comparison: sum (("<" | ">" | "==" | "in" | "not" "in" | "is") sum)*
?sum: term (("+" | "-") term)*
?term: factor (("*" | "/" | "//" | "%") factor)*
?factor: "-" factor | power
?power: atom ["**" factor]
?atom: NAME | NUMBER | STRING | "(" test ")" | "[" [test ("," test)*] "]"
     | atom "." NAME | atom "(" [test ("," test)*] ")" | atom "[" test "]" | "None" | "True"
NAME: /[^\\W\\d]\\w*/
STRING: /"[^"\\n]*"/ | /'[^'\\n]*'/
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""

SQL = """
start: "select"i columns "from"i NAME ["where"i cond] ["order"i "by"i NAME ["desc"i]] ";"?
columns: "*" | NAME ("," NAME)*
?cond: cond "and"i cond | cond "or"i cond | "not"i cond | "(" cond ")" | NAME OP value
?value: NAME | SIGNED_NUMBER | STRING
OP: "=" | "<" | ">" | "<=" | ">=" | "<>"
STRING: /'[^']*'/
NAME: /[a-zA-Z_][a-zA-Z_0-9]*/
%import common (SIGNED_NUMBER, WS)
%ignore WS
"""

JSON = """
?start: value
?value: object | array | ESCAPED_STRING -> string | SIGNED_NUMBER -> number
      | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: ESCAPED_STRING ":" value
%import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
%ignore WS
"""

GRAMMARS = {
    "arithmetic": (
        """
        ?start: sum
        ?sum: product | sum "+" product -> add | sum "-" product -> sub
        ?product: atom | product "*" atom | product "/" atom
        ?atom: NUMBER | "-" atom | NAME | "(" sum ")"
        %import common.CNAME -> NAME
        %import common (NUMBER, WS_INLINE)
        %ignore WS_INLINE
        """,
        ["1+2 * (3e5-45.)/-x", "e2", "1", " -1 - - 2e3 "],
    ),
    "json": (JSON, ['{"a b": [1.5e3, true, "hé\\"x"], "b": {}}', "[]", " [ null,-1 ] ", '""']),
    "sql": (
        SQL,
        [
            "select a, b_1 from t where not a >= 30 and b = 'x y' order by a desc;",
            "SELECT * FROM t",
            "select a from t where nota=1or b<c",
        ],
    ),
    "python": (
        EXPRESSION,
        [
            "x if not y in [1, 2] else lambda a, b: a.f(b)[0] ** -2",
            "nota and not b or notc",
            "'a' is None",
            "1if x else 2",
        ],
    ),
    "dates": (
        """
        start: date ("T" time ZONE?)?
        date: YEAR "-" MONTH "-" DAY
        time: /([01]\\d|2[0-3])/ ":" /[0-5]\\d/ (":" /[0-5]\\d(\\.\\d+)?/)?
        YEAR: /\\d{4}/
        MONTH: /0[1-9]|1[0-2]/
        DAY: /0[1-9]|[12]\\d|3[01]/
        ZONE: "Z" | /[+-]\\d\\d:\\d\\d/
        """,
        ["2024-02-29", "1999-12-31T23:59:59.250+01:00", "2000-01-01T00:00Z"],
    ),
    "urls": (
        """
        start: SCHEME "://" [user "@"] host [":" PORT] path ["?" query] ["#" FRAGMENT]
        SCHEME: "http" "s"? | "ftp"
        user: /[a-z0-9._]+/
        host: LABEL ("." LABEL)*
        LABEL: /[a-z0-9]([a-z0-9-]*[a-z0-9])?/
        PORT: /[0-9]{1,5}/
        path: ("/" /[\\w.~%-]*[\\w.~%]/?)*
        query: pair ("&" pair)*
        pair: /[^=&#\\s]+/ "=" /[^&#\\s]+/
        FRAGMENT: /\\S+/
        """,
        ["https://a.b-c.org:80/x/y.z?q=1&r=é#top", "http://me@host", "ftp://a/b/"],
    ),
    "chess": (
        """
        start: (NUMBER "." move move?)+ RESULT?
        move: PIECE? FROM? "x"? SQUARE ("=" /[QRBN]/)? CHECK? | CASTLE CHECK?
        PIECE: /[KQRBN]/
        FROM: /[a-h][1-8]?|[1-8]/
        SQUARE: /[a-h][1-8]/
        CASTLE: "O-O-O" | "O-O"
        CHECK: "+" | "#"
        RESULT: "1-0" | "0-1" | "1/2-1/2" | "*"
        NUMBER: /[1-9][0-9]*/
        %ignore " "
        """,
        ["1. e4 e5 2. Nf3 Nc6 3. Bb5", "1.e4 d5 2.exd5 Qxd5+ 1-0", "1. O-O O-O-O# *"],
    ),
    "lisp": (
        """
        start: form*
        ?form: atom | "(" form* ")" -> list | "'" form -> quote
        atom: SYMBOL | SIGNED_INT | ESCAPED_STRING
        SYMBOL: /[a-zA-Z+*\\/<>=!?-][\\w+*\\/<>=!?-]*/
        COMMENT: /;[^\\n]*/
        %import common (SIGNED_INT, ESCAPED_STRING, WS)
        %ignore WS
        %ignore COMMENT
        """,
        ['(define (f x) (+ x -1)) ; "end', "", '\'(a "b")', "+1", "(a)(b)"],
    ),
    "csv": (
        """
        start: row (NL row)* NL?
        row: field ("," field)*
        field: PLAIN? | QUOTED
        PLAIN: /[^",\\n]+/
        QUOTED: /"([^"]|"")*"/
        NL: /\\r?\\n/
        """,
        ['a,b,"c ""x"", y"\n1,,2\n', "é, b", ",,"],
    ),
    "units": (
        """
        start: SIGNED_NUMBER unit
        unit: factor (("*" | "/" | " ") factor)*
        factor: PREFIX? BASE ("^" /-?[1-9]/)? | "(" unit ")"
        PREFIX: /[kMGmun]|da/
        BASE: "m" | "s" | "g" | "mol" | "K" | "A" | "cd" | "min" | "N" | "Pa"
        %import common.SIGNED_NUMBER
        """,
        ["3.5e2km/s^2", "1mmol", "-2(m*kg)/s", "1 Pa".replace(" ", ""), "5dam min^-1"],
    ),
    "statements": (
        """
        start: (statement ";")*
        statement: "let" NAME "=" expr | "print" expr | NAME "(" [expr ("," expr)*] ")"
        ?expr: expr "+" expr | NAME | INT | "new" NAME
        NAME: /[a-z][a-z0-9]*/
        INT: /0|[1-9][0-9]*/
        %ignore /[ \\n]+/
        %ignore /\\/\\*.*?\\*\\//s
        """,
        ["let x = 1+newy; print x /* ; */ ;", "letx=0;letter(1, 2);", "", "printlet(1);"],
    ),
    "balanced": ('start: "(" start ")" start | "[" start "]" start | ', ["([])()", "", "[[]]"]),
    "palindromes": (
        'start: "a" start "a" | "b" start "b" | "a" | "b" | ',
        ["abba", "aba", "", "babbab"],
    ),
    "markdown": (
        """
        start: (heading | item | para)+
        heading: /#{1,3}/ " " TEXT "\\n"
        item: "- " inline+ "\\n"
        para: inline+ "\\n"
        ?inline: "**" TEXT "**" | "`" /[^`\\n]+/ "`" | TEXT
        TEXT: /[^*`#\\n-][^*`\\n]*/
        """,
        ["# A b\n- x `y` **z**\npara é\n", "a\n"],
    ),
    "regexes": (
        """
        start: branch ("|" branch)*
        branch: piece*
        piece: atom ("*" | "+" | "?" | "{" INT ["," INT?] "}")?
        atom: /[^\\\\|*+?{}()\\[\\].^$]/ | "." | "\\\\" /./ | "(" start ")" | "[" "^"? range+ "]"
        range: /[^\\\\\\]]/ ["-" /[^\\\\\\]]/]
        INT: /[0-9]+/
        """,
        ["a(b|c*){2,3}[^a-z]\\.", "", "a|"],
    ),
    "emails": (
        """
        start: address (", " address)*
        address: NAME "<" mail ">" | mail
        mail: /[\\w.+-]+/ "@" DOMAIN
        DOMAIN: /[a-z0-9-]+(\\.[a-z0-9-]+)+/
        NAME: /[A-Z][a-z]+ ([A-Z][a-z]+ )*/
        """,
        ["a.b+c@x.org, Jo Doe <jo@d-e.co.uk>", "é@a.b"],
    ),
    "roman": (
        """
        start: "M"~0..3 hundreds tens ones
        hundreds: "CM" | "CD" | "D"? "C"~0..3
        tens: "XC" | "XL" | "L"? "X"~0..3
        ones: "IX" | "IV" | "V"? "I"~0..3
        """,
        ["MCMXCIV", "", "III", "XLII"],
    ),
    "versions": (
        """
        start: comparison ("," comparison)*
        comparison: OPERATOR version
        version: INT ("." (INT | "*"))* [("a" | "b" | "rc") INT] [".dev" INT]
        OPERATOR: "==" | "===" | ">=" | "<=" | "~=" | ">" | "<" | "!="
        %import common.INT
        %ignore " "
        """,
        [">=1.2.3rc1, <2.*", "===1.0.dev3", "== 1 . 2"],
    ),
    "music": (
        """
        start: bar ("|" bar)* "|"?
        bar: (note | rest | chord)+
        note: /[A-Ga-g]/ ("#" | "b")? OCTAVE? LENGTH?
        rest: "r" LENGTH?
        chord: "<" note+ ">"
        OCTAVE: /[0-8]/
        LENGTH: "/" /[1-9][0-9]?/
        %ignore /\\s+/
        """,
        ["C#4/8 Eb r/4 | <C E G> bb|", "abc", "b b"],
    ),
    "logic": (
        """
        start: formula
        ?formula: iff
        ?iff: imp ("<->" imp)*
        ?imp: or ["->" imp]
        ?or: and (("|" | "∨") and)*
        ?and: not (("&" | "∧") not)*
        ?not: ("~" | "¬") not | ("∀" | "∃") VAR "." formula | PRED ["(" VAR ("," VAR)* ")"]
            | "(" formula ")"
        VAR: /[x-z]/
        PRED: /[P-S]/
        %ignore /[ \\t]/
        """,
        ["∀x. P(x) -> ¬Q ∨ R", "P<->~(Q & S(x,y))"],
    ),
}
