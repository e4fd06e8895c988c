
# Tensors of the model that is named before.
_PROGRAM_tensors() {
    local model name rest
    local -a names
    for model in ${words[2,CURRENT-1]}; do [[ -e $model ]] && break; done
    [[ -e $model ]] || return 1
    while read -r name rest; do names+=("$name"); done < <(PROGRAM ls $model 2> /dev/null | sed '1d;$d')
    compadd -a names
}

# Files, and models in Hugging Face's cache.
_PROGRAM_models() {
    local name hub=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub
    local -a names
    for name in ${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$hub}}/models--*(N:t); do
        name=${name#models--}
        names+=("${name/--//}")
    done
    _files
    compadd -a names
}
