"""spinf-smollm2: the Llama-architecture stack and the embedded default model, SmolLM2-135M-Instruct."""
