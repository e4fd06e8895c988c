// What llama.cpp would make of a model, under every file type: prints its log. For mixture.py.
//
//     c++ -O1 -o mixture mixture.cpp -lllama -lggml -lggml-cpu -lggml-base
//
//     mixture <model.gguf> <file type>...
//
// For each file type the model is gone through as it is, with an importance matrix, and with `pure`, which writes
// nothing. The fourth time is in earnest and without a matrix, if the number has a `!`: that must fail.

#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static void print(ggml_log_level, const char * text, void *) { fputs(text, stdout); }

int main(int argc, char ** argv) {
    llama_log_set(print, nullptr);
    const float ones[1] = { 1.0f };
    const llama_model_imatrix_data matrix[2] = { { "none", ones, 1 }, { nullptr, nullptr, 0 } };
    for (int i = 2; i < argc; ++i) {
        const char * modes[] = { "plain", "imatrix", "pure", "needs" };
        for (int mode = 0; mode < 4; ++mode) {
            if (mode == 3 && !strchr(argv[i], '!')) {
                continue;
            }
            printf("\n== %s %d\n", modes[mode], atoi(argv[i]));
            llama_model_quantize_params params = llama_model_quantize_default_params();
            params.ftype   = (llama_ftype) atoi(argv[i]);
            params.nthread = 1;
            params.dry_run = mode != 3;
            params.imatrix = mode == 1 ? matrix : nullptr;
            params.pure    = mode == 2;
            const uint32_t failed = llama_model_quantize(argv[1], "/dev/null", &params);
            printf("\n== end %u\n", failed);
        }
    }
    return 0;
}
