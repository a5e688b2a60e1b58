from __future__ import annotations

from reluformer.translation.tokenizer import END, SEPARATOR
from reluformer.translation.words import laid_out


def test_a_mark_is_told_from_text_of_the_same_letters(tokenizer):
    tokens, words = laid_out(tokenizer, ["a <sep> dog", "it <end>"], first=0)
    assert [word.text for word in words] == ["a", "<sep>", "dog", "<sep>", "it", "<end>", "<end>"]
    assert [word.is_mark for word in words] == [False, False, False, True, False, False, True]
    assert [token for token, place in tokens if words[place].is_mark] == [SEPARATOR, END]
