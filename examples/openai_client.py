"""Example of the openai client with specplug's request fields.

python examples/openai_client.py http://localhost:8000 MODEL [FIELD]

The server is the engine's own, started with specplug (see docs/serving.md).  The client does not need specplug.  FIELD
is the engine's field that holds specplug's: `vllm_xargs`, the default, or SGLang's `custom_params`.
"""

import sys

from openai import BadRequestError, OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = sys.argv[2]
carrier = sys.argv[3] if len(sys.argv) > 3 else "vllm_xargs"
code = "def read(path, mode):\n    with open(path, mode) as file:\n        text = file.read()\n    return text"
change = "def read(path, mode):\n    with open(path, flags) as file:\n        text = file.read()"
requested = {
    "model": model,
    "prompt": f"<|document|>{code}<|edit|>{change}<|answer|>",
    "max_tokens": 80,
    "temperature": 0,
}

plain = client.completions.create(**requested, extra_body={carrier: {"specplug_enabled": 0}})
print(plain.choices[0].text)

# What the answer will probably be: drafted from, never copied without the model's consent.  It is not in the prompt.
guess = {"specplug_prediction": code.replace("path, mode)", "path, flags)")}
text = ""
for chunk in client.completions.create(**requested, stream=True, extra_body={carrier: guess}):
    text += chunk.choices[0].text
print("the same, streamed, with a prediction:", text == plain.choices[0].text)

chat = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Return the whole text of a file."}],
    max_tokens=20,
    temperature=0,
    prediction={"type": "content", "content": code},  # OpenAI's own field does the same
    extra_body={carrier: {"specplug_num_speculative_tokens": 4, "specplug_tenant": "acme"}},
)
print("chat:", chat.choices[0].finish_reason)

try:
    client.completions.create(**requested, extra_body={carrier: {"specplug_propser": "ngram"}})
except BadRequestError as error:
    print(f"{error.status_code}: {error.body['message']}")
