# ruff: noqa: RUF001  (look-alike characters are the point of the texts)
"""A tokenizer's identity: a digest of the ids that it gives a fixed set of texts.

The texts are short, never changed, and cover many scripts, code and runs of characters.  Changing them changes every
fingerprint, and with it which stores can be opened.  The characters have been in Unicode for a long time, because
libraries support different versions of it.  Nothing looks like a special token, because wrappers treat those
differently.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field


class Fingerprint(NamedTuple):
    """A tokenizer's identity.

    Attributes:
        name: its name, for messages only.
        digest: hexadecimal; equal where two tokenizers give the same ids.
        vocab_size: token ids lie in [0, vocab_size).
    """

    name: Annotated[str, Field(strict=True)]
    digest: Annotated[str, Field(strict=True)]
    vocab_size: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]


def fingerprint(tokenizer: Any, name: str = "") -> Fingerprint:
    """Return a tokenizer's identity, taken from the ids that it gives a fixed set of texts.

    It is the same whichever engine or library wraps the tokenizer.  The vocabulary itself is not compared: wrappers
    write its entries differently, and added special tokens change no text's ids.  Takes about 10 ms.  `tokenizer` is
    one that `encoder` takes; `name` is for messages, by default the tokenizer's own.
    """
    encode = encoder(tokenizer)
    digest = hashlib.sha256()
    largest = -1
    for text in fingerprint_texts():
        ids = np.asarray(encode(text), dtype=np.int64)
        digest.update(np.int64(ids.size).tobytes())
        digest.update(ids.tobytes())
        largest = max(largest, int(ids.max(initial=-1)))
    known = name or str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return Fingerprint(known, digest.hexdigest()[:32], max(_vocab_size(tokenizer), largest + 1))


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return the function that turns text into ids without special tokens around them.

    `tokenizer` is of Hugging Face (`AutoTokenizer`, `tokenizers.Tokenizer`) or of mistral_common, or an engine's
    wrapper.
    """
    tokenizer = _bare(tokenizer)
    if "bos" in inspect.signature(tokenizer.encode).parameters:
        return lambda text: list(tokenizer.encode(text, bos=False, eos=False))

    def encode(text: str) -> list[int]:
        found = tokenizer.encode(text, add_special_tokens=False)
        return list(getattr(found, "ids", found))

    return encode


def _bare(tokenizer: Any) -> Any:
    """Return the underlying tokenizer if mistral_common has wrapped it in one for chats."""
    chat = getattr(tokenizer, "instruct_tokenizer", None)
    return tokenizer if chat is None or hasattr(tokenizer, "encode") else chat.tokenizer


def _vocab_size(tokenizer: Any) -> int:
    """Return the number of ids that the tokenizer reports; added tokens may follow a gap."""
    tokenizer = _bare(tokenizer)
    if hasattr(tokenizer, "n_words"):
        return int(tokenizer.n_words)
    if hasattr(tokenizer, "get_vocab_size"):
        size = int(tokenizer.get_vocab_size())
        added = tokenizer.get_added_tokens_decoder()
    else:
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
        added = getattr(tokenizer, "added_tokens_decoder", None)
    return max(size, 1 + max(added, default=-1)) if isinstance(added, Mapping) else size


_PROSE = """\
The quick brown fox jumps over the lazy dog, doesn't it? I'll say we've seen it, they're sure he'd know.
In 1984, about 12,345.678 people (3.5% of them) paid $99.99 or 1e-10 of it; call +1-202-555-0147 before 07:30!
HTTP requests were re-implemented asynchronously, uncharacteristically, and counterproductively, by NASA and O'Neill.
"Supercalifragilisticexpialidocious" -- she said... 'antidisestablishmentarianism' & e-mail to someone@example.com.
See https://www.example.org/path/to/page.html?query=value&other=1#section-2, or C:\\Users\\name\\file_v2.final.txt
Zürich, naïve café, jalapeño, Ærøskøbing, Łódź, Việt Nam, İstanbul'da, Besançon; el niño comió piñas; Straße größer.
L'été dernier, nous étions à l'hôtel où l'on parlait français. Wir müssen überprüfen, ob das möglich wäre. Não são três.
Съешь же ещё этих мягких французских булок, да выпей чаю. Жебракують філософи при ґанку церкви. Кириллица и латиница.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ελληνική γλώσσα και κείμενο. ἐν ἀρχῇ ἦν ὁ λόγος
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שלום עולם, מה שלומך היום?
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. السلام عليكم ورحمة الله. این یک متن فارسی است
ऋषियों को सताने वाले दुष्ट राक्षसों का विनाश। नमस्ते दुनिया, आप कैसे हैं? বাংলা ভাষায় লেখা একটি বাক্য
தமிழ் மொழி எழுத்து. తెలుగు లిపి. ಕನ್ನಡ. മലയാളം ഭാഷ. ਪੰਜਾਬੀ. ગુજરાતી. සිංහල. เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
天地玄黄宇宙洪荒日月盈昃辰宿列张。我们今天去北京大学学习人工智能，你觉得怎么样？機器學習與深度學習的關係。
いろはにほへとちりぬるを。私は東京で働いています。プログラミング言語のコンピュータ・サイエンス「テスト」ﾊﾝｶｸ
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 안녕하세요, 오늘 날씨가 정말 좋네요!
ქართული ენა. Հայերեն լեզու. አማርኛ ቋንቋ. ខ្មែរ. မြန်မာ. བོད་ཡིག. ᏣᎳᎩ. ᚠᚢᚦᚨᚱᚲ. Монгол. ລາວ
😀 😂🤣 ❤\ufe0f 👍🏽 👨\u200d👩\u200d👧\u200d👦 🇩🇪🇯🇵 🏳\ufe0f\u200d🌈 \
☃ ✈ ★ ♥ ✓ → ⇒ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ≤ ∞, α∧¬β → ∑ᵢ₌₁ⁿ √π² ½ ¾ ㎏ Ⅷ ① ﬁ Å e\u0301 ﷽ 𝒜𝓑 𐍈 𠮷
“Curly” ‘quotes’ – en—em … ‚low‘ «guillemets» „unten“ ¡hola! ¿qué? § ¶ © ® ™ € £ ¥ ₹ ° µ × ÷ ± † ‡ • ‰ ′ ″ ‽ ※
"""

_CODE = """\
def fibonacci(n: int) -> list[int]:
    \"\"\"Return the first n numbers.\"\"\"
    a, b = 0, 1
    result = []
    for _ in range(n):
        result.append(a)
        a, b = b, a + b  # next
    return result


class HTTPServerHandler(BaseHTTPRequestHandler):
\tdef do_GET(self, *args, **kwargs):
\t\tself.send_response(200); x_train = np.zeros((16, 32), dtype=np.float32)[::-1, ...]
\t\tif not isinstance(value, (str, bytes)) and value is not None: raise ValueError(f"bad {value!r:>10}")

#include <stdio.h>
int main(int argc, char **argv) { for (size_t i = 0; i < N; ++i) { printf("%d\\n", arr[i] << 2); } return 0xDEADBEEF; }
template <typename T> std::vector<std::unique_ptr<T>>&& f(const T& x) noexcept { return *this != x ? a->b : ::c; }
fn main() -> Result<(), Box<dyn Error>> { let mut v: Vec<u8> = vec![0u8; 1024]; println!("{:?}", &v[..]); Ok(()) }
export const useThing = async (id) => { await fetch(`/api/v1/${id}`).then((r) => r.json() ?? {}); };
SELECT u.name, COUNT(*) FROM users AS u LEFT JOIN orders o ON o.user_id = u.id WHERE u.age >= 18 GROUP BY 1;
<div class="container"><a href="#top">&nbsp;Top</a></div><!-- note --><br/></html>
{"key": [1, 2.0, -3e5, true, null], "nested": {"empty": {}, "text": "a\\u00e9\\n"}}
$ sudo apt-get install -y python3 && export PATH="$HOME/bin:$PATH" | grep -E '^[a-z]+$' > /dev/null 2>&1
\\begin{equation} \\frac{\\partial^2 u}{\\partial x^2} = \\sum_{i=0}^{n} \\alpha_i \\end{equation}
| a | b |\n|---|:-:|\n| **bold** | `code` |\n\n```python\n>>> print("hi")\n```\n- [ ] item\n1. first\n   * nested
@@ -12,7 +12,9 @@ diff --git a/x b/x\n-    old = 1\n+    new = 2
getElementById camelCaseWord snake_case_word SCREAMING_SNAKE kebab-case-word PascalCase2Go x86_64 utf8 v1.2.3-rc.4+b5
"""

_WORDS = """\
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
Guten bitte danke nicht werden können zwischen Geschichte Wissenschaft Entwicklung Gesellschaft Verantwortung
bonjour merci toujours maintenant pourquoi beaucoup quelque chose développement gouvernement connaissance
gracias siempre también después nosotros entonces mientras conocimiento desarrollo investigación información
grazie sempre perché anche quando oggi obrigado você também então dziękuję wszystko tylko bardzo köszönöm
tak meget ikke også tack mycket inte kiitos paljon teşekkür ederim için değil güzel cảm ơn không được người terima
kasih tidak untuk dengan hapana asante sana habari protein enzyme mitochondria quantum electron algorithm theorem
jurisdiction plaintiff hereinafter amortization derivatives inflation diagnosis chronic pharmaceutical neuroscience
"""

_HAN = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没"
    "日起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月"
    "個來時國會說學對開經頭動兩長現樣將實回體無發電車東風飛馬魚鳥龍龜齒"
)


def fingerprint_texts() -> Iterator[str]:
    """Yield the texts, each short enough for the smallest context: libraries warn about longer ones."""
    for text in (_PROSE, _CODE, _WORDS):
        yield from text.splitlines()
    for start in range(0, len(_CODE), 200):
        yield _CODE[start : start + 200]
    for start in range(0, len(_HAN), 24):
        yield _HAN[start : start + 24]
    yield "".join(map(chr, range(32, 127)))
    yield " ".join(map(chr, range(33, 127)))
    yield "".join(map(chr, range(1, 32))) + "\x7f\x80\x85\xa0\xad\u200b\u200d\u2028\u3000"
    yield "".join(map(chr, range(0xA1, 0x180)))
    yield from _runs()
    yield " ".join(str(7**n) for n in range(24))
    for start in range(0, 1200, 200):
        yield " ".join(str(n) for n in range(start, start + 200, 7))


def _runs() -> Iterator[str]:
    """Yield runs of one character, alone and between others: tokenizers split them in very different ways."""
    for character in " \t\n-=_#*./ae0":
        yield "x".join(character * count for count in (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32))
    for run in ("\r\n", " \n", "\n\n ", "\t ", "  \n  ", "\n\t\n"):
        yield f"{run}a{run}{run}b{run * 3}"
    yield "   leading and trailing   "
