"""nginx.conf as a tree: read, changed, and written again."""

import dataclasses
import re

# A word, a text in quotes, a brace or a semicolon.
TOKEN = re.compile(r"""\s+|\#[^\n]*|(?P<sign>[{};])
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<word>(?:\$\{|\\.|[^\s;{}"'\\])(?:\$\{[^}]*\}?|\\.|[^\s;{\\])*)""", re.X | re.S)


@dataclasses.dataclass
class Directive:
    # With the quotes of the file.
    words: list
    # None without a block.
    block: list | None = None

    @property
    def name(self):
        return self.words[0]

    def args(self):
        return [unquoted(word) for word in self.words[1:]]

    def named(self, *names):
        return [one for one in self.block or [] if one.name in names]

    def everywhere(self):
        """This directive and all below it."""
        yield self
        for one in self.block or []:
            yield from one.everywhere()


def unquoted(word):
    return word[1:-1] if word[:1] in "\"'" and word[:1] == word[-1:] else word


def parse(text):
    """The directives of a file. A fault of its syntax is a ValueError."""
    stack, words, at = [[]], [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise ValueError(f"no syntax of nginx: {text[at:at + 40]!r}")
        at = match.end()
        if match["sign"] is None:
            if match[0].strip() and not match[0].startswith("#"):
                words.append(match[0])
        elif match["sign"] == ";":
            stack[-1].append(Directive(words))
            words = []
        elif match["sign"] == "{":
            block = []
            stack[-1].append(Directive(words, block))
            stack.append(block)
            words = []
        else:
            stack.pop()
    if len(stack) != 1 or words:
        raise ValueError("the last block does not end")
    return stack[0]


def written(directives, indent=""):
    lines = []
    for one in directives:
        head = indent + " ".join(one.words)
        if one.block is None:
            lines.append(head + ";")
        else:
            lines += [head + " {", written(one.block, indent + "    "), indent + "}"]
    return "\n".join(lines)
