"""Real English text from what ships with Python: docstrings, comments and the `pydoc` topics.

Run once before training: `python -m tools.training.corpus --out DIR`. It writes train.txt, heldout.txt (split by
file, about one in twenty) and chat.json (what deepseek-recipe renders for each model's thinking requests).
"""

import argparse
import ast
import hashlib
import io
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tools.training.tokens import SYSTEM, USER, decode
from tools.training.turns import ChatForm

SKIPPED = frozenset({"site-packages", "dist-packages", "lib2to3", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Training and held-out prose, and the form of the model's chats."""

    train: bytes
    heldout: bytes
    chat: ChatForm

    @classmethod
    def load(cls, folder: Path, model_type: str = "deepseek_v4") -> "Corpus":
        """From the files that `build` wrote, for a model of this type."""
        form = json.loads((folder / "chat.json").read_text())[model_type]
        chat = ChatForm(**{**form, "thinking_prefixes": tuple(form["thinking_prefixes"])})
        return cls((folder / "train.txt").read_bytes(), (folder / "heldout.txt").read_bytes(), chat)

    @property
    def sha256(self) -> str:
        """Digest of train and held-out text together."""
        return hashlib.sha256(self.train + b"\0" + self.heldout).hexdigest()


def docstrings(source: str) -> Iterator[str]:
    """Docstrings of the module, its classes and functions, in order, without the very short."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 20:
                yield text


def comments(source: str) -> Iterator[str]:
    """Comment blocks (comments on lines of their own; consecutive lines joined), of 40 characters and more."""
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not token.line.strip().startswith("#"):
            continue
        if token.start[0] != last + 1:
            yield from _long_enough(block)
            block = []
        block.append(token.string.lstrip("#").strip())
        last = token.start[0]
    yield from _long_enough(block)


def _long_enough(block: list[str]) -> Iterator[str]:
    text = "\n".join(block).strip()
    if len(text) >= 40:
        yield text


def prose(path: Path) -> str:
    """All prose of one source file; an unparsable one (data for Python's own tools) has none."""
    source = path.read_text(encoding="utf-8")
    if path.parent.name == "pydoc_data":
        values = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
        return "\n\n".join(value for value in values if isinstance(value, str) and len(value) > 200)
    return "\n\n".join([*docstrings(source), *comments(source)])


def build(library: Path, out: Path) -> Corpus:
    """Write the corpus of the Python library at `library` into `out` and return it."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if SKIPPED & set(name.parts):
            continue
        try:
            text = prose(path)
        except (SyntaxError, UnicodeDecodeError, tokenize.TokenError) as error:
            print(f"skipped {name}: {error}")
            continue
        held = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 20 == 0
        if text:
            parts[held].append(text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.txt").write_text("\n\n".join(parts[False]), encoding="utf-8")
    (out / "heldout.txt").write_text("\n\n".join(parts[True]), encoding="utf-8")
    forms = {"deepseek_v4": chat_form("v4"), "deepseek_v41": chat_form("v41")}
    (out / "chat.json").write_text(json.dumps({name: asdict(form) for name, form in forms.items()}))
    return Corpus.load(out)


def chat_form(family: Literal["v4", "v41"]) -> ChatForm:
    """The form of a model's chats, read off what deepseek-recipe renders.

    V4.1 thinks unless told not to, so its training asks for thinking more often; its efforts are numbers in the text.
    """
    if family == "v4":
        return ChatForm("DeepSeek-V4", (_thinking_prefix("DeepSeek-V4-Pro", family),), False, 0.1)
    efforts = ("low", "high", "max")
    prefixes = tuple(_thinking_prefix("DeepSeek-V4.1-Flash", family, effort) for effort in efforts)
    return ChatForm("DeepSeek-V4.1", prefixes, True, 0.3)


def _thinking_prefix(model: str, family: Literal["v4", "v41"], effort: str | None = None) -> str:
    """What stands between bos (V4.1: the system token) and the user token when thinking is on."""
    import deepseek_recipe  # here only: training itself runs where it may be missing

    from dsv4_serve.engines.embedded.tokenizer import build_byte_tokenizer

    kind = deepseek_recipe.DeepseekV4Encoding if family == "v4" else deepseek_recipe.DeepseekV41Encoding
    encoding = kind().with_tokenizer(deepseek_recipe.Tokenizer.from_str(build_byte_tokenizer().to_str()))
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    if effort is not None:
        body["reasoning_effort"] = effort
    request = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    ids = [token for token in encoding.encode(request.conversation) if token != SYSTEM]
    return decode(ids[1 : ids.index(USER)])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for train.txt, heldout.txt, chat.json")
    arguments = parser.parse_args()
    corpus = build(Path(sysconfig.get_paths()["stdlib"]), arguments.out)
    print(f"train {len(corpus.train)} bytes, held out {len(corpus.heldout)} bytes, sha256 {corpus.sha256[:16]}")


if __name__ == "__main__":
    main()
