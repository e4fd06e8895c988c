
# The model that is named before.
function __PROGRAM_model
    for word in (commandline -opc)[3..]
        if test -e $word
            echo $word
            return 0
        end
    end
    return 1
end

function __PROGRAM_tensors
    PROGRAM ls (__PROGRAM_model) 2>/dev/null | sed '1d;$d;s/ .*//'
end

# Models in Hugging Face's cache.
function __PROGRAM_models
    set -l cache $HOME/.cache
    test -n "$XDG_CACHE_HOME"; and set cache $XDG_CACHE_HOME
    set -l hub $cache/huggingface/hub
    test -n "$HF_HOME"; and set hub $HF_HOME/hub
    test -n "$HUGGINGFACE_HUB_CACHE"; and set hub $HUGGINGFACE_HUB_CACHE
    test -n "$HF_HUB_CACHE"; and set hub $HF_HUB_CACHE
    for path in $hub/models--*
        basename $path | sed 's/^models--//;s/--/\//'
    end
end

complete -c PROGRAM -n "__fish_PROGRAM_using_subcommand show; and __PROGRAM_model >/dev/null" -f -a "(__PROGRAM_tensors)"
for option in include exclude drop rename
    complete -c PROGRAM -n "__fish_seen_subcommand_from remember forget convert merge" -l $option -x -a "(__PROGRAM_tensors)"
end
complete -c PROGRAM -n "not __fish_PROGRAM_needs_command; and not __PROGRAM_model >/dev/null" -a "(__PROGRAM_models)"
