"""Text as blocks of tokens: nothing is lost between files, and one line for what is wrong."""

import pytest
import torch

from hetero_hvd.data import ByteTokenizer, TextBlocks
from hetero_hvd.data.listing import opened_files
from hetero_hvd.errors import UserError

TEXTS = {"b.txt": "and then\n", "a.txt": "once, ünder ", "c.md": "all."}
WHOLE = "once, ünder and then\nall.".encode()


class Encoder:
    """As those of tokenizers and transformers."""

    def encode(self, text):
        """A letter is a token."""
        return [ord(letter) for letter in text]


class Encoding:
    """What the tokenizers package gives."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)


class OtherEncoder(Encoder):
    """As that of the tokenizers package."""

    def encode(self, text):
        """The same, in an object."""
        return Encoding(super().encode(text))


@pytest.mark.parametrize("name", ["file", "http"])
def test_it_gives_the_same_blocks_from_any_place(rigs, name):
    """In the order of the files' names; the rest that fills no block is left out."""
    rig = rigs(name)
    rig.fill({f"texts/{name}": text.encode() for name, text in TEXTS.items()})
    arguments = rig.arguments()
    found = TextBlocks(f"{arguments.pop('url')}/texts", 4, **arguments)
    assert found[0].dtype == torch.int64
    assert bytes(torch.cat(list(found)).tolist()) == WHOLE[: len(WHOLE) // 4 * 4]
    assert torch.equal(found[-1], found[len(found) - 1])
    near = opened_files()[-2:]
    assert [each.num_files for each in near] == [3, 1]


@pytest.mark.parametrize("tokenizer", [Encoder(), OtherEncoder(), Encoder().encode])
def test_any_tokenizer_will_do(tmp_path, tokenizer):
    """With a separator between files; another tokenizer has another digest."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    separator = ByteTokenizer.separator
    found = TextBlocks(tmp_path, 1, tokenizer, separator=separator)
    letters = [ord(letter) for letter in WHOLE.decode()]
    letters.insert(len(TEXTS["a.txt"]), separator)
    letters.insert(-4, separator)
    assert [int(block) for block in found] == letters
    TextBlocks(tmp_path, 1, separator=separator)
    one, other = opened_files()[-3], opened_files()[-1]
    assert one.digest != other.digest


@pytest.mark.parametrize("separator", [-1, 2**31, 0.5, True, "x"])
def test_a_separator_that_is_no_token_is_refused(tmp_path, separator):
    """As one that a tokenizer gives would be."""
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(UserError, match=r"separator: .*: must be a whole number from 0 to 2147483"):
        TextBlocks(tmp_path, 1, separator=separator)


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (b"abc", (4,), "text at PATH: 3 tokens are less than one block of 4"),
        (b"", (4,), "text at PATH: 0 tokens are less than"),
        (b"abc", (0,), "text at PATH: block_size: 0: must be a whole number >= 1"),
        (b"abc", (True,), "text at PATH: block_size: True: must be"),
        (b"ab\xff", (2,), "PATH/x.txt: is no text in UTF-8: byte 2"),
        (b"abc", (2, 7), "text at PATH: tokenizer: 7: must be a function"),
        (b"abc", (2, "gpt2"), "text at PATH: tokenizer: 'gpt2': must be a function"),
        (b"abc", (2, ByteTokenizer), "text at PATH: tokenizer: the class ByteTokenizer: must be a"),
        (b"abc", (2, lambda _: [1.5]), "PATH/x.txt: the tokenizer must give a list of whole"),
        (b"abc", (2, lambda _: [-1]), "PATH/x.txt: the tokenizer must give"),
        (b"abc", (2, lambda _: [2**31]), "PATH/x.txt: the tokenizer must give"),
        (b"abc", (2, lambda _: [[1]]), "PATH/x.txt: the tokenizer must give"),
        (b"abc", (2, lambda _: 5), "PATH/x.txt: the tokenizer must give"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, content, arguments, said):
    """When the data set is made."""
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(UserError) as found:
        TextBlocks(tmp_path, *arguments)
    assert str(found.value).replace(str(tmp_path), "PATH").startswith(said)
    assert "\n" not in str(found.value)
