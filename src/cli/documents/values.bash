
# Bash ends words at colons otherwise, so that nothing completes `gguf:q4`.
COMP_WORDBREAKS=${COMP_WORDBREAKS//:}

# Adds what options do not say: tensors of the model that is named, and models in Hugging Face's cache.
# Names come from files that nobody need trust: they are compared and quoted, and `compgen -W`, which
# would run what is in them, never has them.
_PROGRAM_values() {
    _PROGRAM "$@"
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} model name _
    [[ $cur == -* || $COMP_CWORD -lt 2 ]] && return
    for model in "${COMP_WORDS[@]:2:COMP_CWORD - 2}"; do [[ -e $model ]] && break; done
    case $prev in
        --include | --exclude | --drop | --rename | --tensor-type) ;;
        -*) return ;;
        *)
            if [[ ! -e $model ]]; then
                [[ -n $(compgen -f -- "$cur") ]] && return
                local hub=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub
                for name in "${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$hub}}"/models--*; do
                    name=${name##*/models--} name=${name/--//}
                    [[ $name != '*' && $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
                done
                return
            fi
            [[ ${COMP_WORDS[1]} == show ]] || return
            ;;
    esac
    [[ -e $model ]] || return
    COMPREPLY=()
    while read -r name _; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
    done < <("${COMP_WORDS[0]}" ls "$model" 2> /dev/null | sed '1d;$d')
}
complete -o bashdefault -o default -F _PROGRAM_values PROGRAM
