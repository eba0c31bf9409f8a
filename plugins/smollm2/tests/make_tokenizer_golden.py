"""Writes `tokenizer_golden.json`: strings and the ids that llama.cpp's own tokenizer gives them.

Run it by hand, in an environment that has llama-cpp-python and gguf, on the GGUF file that the manifest pins:

    python make_tokenizer_golden.py SmolLM2-135M-Instruct.Q4_1.gguf

The strings are parsed with `special=False` and no BOS, as user text is. A second list comes from the same vocabulary
with `tokenizer.ggml.pre` set to `gpt-2`, from a copy of the file's header with that one field changed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import gguf
import llama_cpp

STRINGS = [
    "",
    " ",
    "a",
    "Hello world",
    " Hello  world ",
    "The refund was approved on 14 September 2023.",
    "0123456789",
    " 12 345.67%",
    "x1y2z3",
    "½ cup, ¾ of it, 2² and Ⅷ",
    "٣٤ و ۱۲۳",
    "१२३ ๑๒",
    "①②⑳ 〇 一二三",
    "don't won't I'll they're we've he'd I'm it's",
    "DON'T WE'LL 'tis ’twas it’s",
    "naïve café Ångström ﬁne",
    "e\u0301 combining, \u212b sign",
    "Привет, мир! Γειά σου",
    "שלום עולם مرحبا",
    "你好，世界。日本語テキスト 한국어",
    "😀 👍🏽 👩‍👩‍👧 🇫🇷 ❤️",
    "\n",
    "\n\n\n",
    "line one\nline two\r\nline three\r",
    "tab\tand\t\ttabs",
    "   leading and trailing   ",
    "a  b   c    d",
    "word \n word \n\n  word",
    "no\u00a0break\u2009thin\u3000wide\u200bzero",
    "nel\u0085sep\u2028par\u2029end",
    "def f(x):\n    return x ** 2  # square\n",
    '{"key": [1, 2.5, null], "s": "a\\nb"}',
    "<html><body class='x'>&amp;</body></html>",
    "https://example.com/a?b=c&d=%20#e",
    "<|im_end|>",
    "<|im_start|>assistant\nYes<|im_end|>\n",
    "hi <|endoftext|> there",
    "<repo_name>x<file_sep>y<jupyter_code>",
    "< |im_end| > <|im_end |>",
    "\n\nQuestion: is it paid?\nAnswer:",
    "Answer: yes",
    "$1,200.00 (740) −5 €9.99 ¥100 №7",
    "_snake_case camelCase PascalCase kebab-case",
    "!!! ??? ... --- *** ### @@@ ~~~",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism floccinaucinihilipilification",
    "nul\x00and bell\x07",
    "\ufeffbyte order mark",
    "private \ue000 and unassigned \U000e0fff",
]


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        gpt2 = Path(folder) / "gpt2.gguf"
        rewrite_pre(source, gpt2, "gpt-2")
        document = {
            "about": (
                f"Token ids by llama.cpp (llama-cpp-python {metadata.version('llama-cpp-python')}), "
                f"{source.name}, special=False, add_bos=False. Regenerate with make_tokenizer_golden.py."
            ),
            "smollm": tokenize(source),
            "gpt-2": tokenize(gpt2),
        }
    text = json.dumps(document, ensure_ascii=True, indent=0)
    (Path(__file__).parent / "tokenizer_golden.json").write_text(compact(text), encoding="ascii")


def tokenize(path: Path) -> list[list[object]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [[text, model.tokenize(text.encode(), add_bos=False, special=False)] for text in STRINGS]


def rewrite_pre(source: Path, target: Path, pre: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = pre if name == "tokenizer.ggml.pre" else field.contents()
        sub_type = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def compact(text: str) -> str:
    """One case a line, so that a change is readable."""
    document = json.loads(text)
    lists = [f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in document[name]) + "\n]" for name in ("smollm", "gpt-2")]
    return '{\n"about": ' + json.dumps(document["about"]) + ",\n" + ",\n".join(lists) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
