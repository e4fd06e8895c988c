//! The first bytes of containers. A file can have those of several; [`detect`](super::detect) says
//! in which order they count.

/// Whether a file with these first bytes is safetensors: the length of its header, and JSON.
pub(super) fn is_safetensors(head: &[u8]) -> bool {
    matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..])
}

/// Whether a file with these first bytes is GGUF.
pub(super) fn is_gguf(head: &[u8]) -> bool {
    head.starts_with(b"GGUF")
}

/// Whether a file with these first bytes is QNAT.
pub(super) fn is_qnat(head: &[u8]) -> bool {
    head.starts_with(b"QNAT")
}

/// Whether a file with these first bytes is a tar archive, but for the oldest kind.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Beginnings of the media types of manifests and layers, of which each manifest of Ollama has one
/// near its beginning.
const MANIFEST_KINDS: [&[u8]; 3] =
    [b"application/vnd.docker.", b"application/vnd.oci.", b"application/vnd.ollama."];

/// Whether a file with these first bytes is a manifest of Ollama.
pub(super) fn is_ollama_manifest(head: &[u8]) -> bool {
    let has = |kind: &&[u8]| head.windows(<[u8]>::len(kind)).any(|at| at == *kind);
    head.starts_with(b"{") && MANIFEST_KINDS.iter().any(has)
}

/// Whether a file with these first bytes is of a container that holds tensors and text alone.
#[cfg(feature = "pth")]
pub(super) fn is_weights(head: &[u8]) -> bool {
    let is_manifest = || is_ollama_manifest(head) && !is_tar(head);
    is_safetensors(head) || is_gguf(head) || is_qnat(head) || is_manifest()
}
