/* Compiles a saved graph and runs it, in C: with the weights that .safetensors files have, and with
 * random numbers for the rest.
 *
 *   cc bert.c $(pkg-config --cflags --libs kiln) -o bert
 *   ./bert bert-base.kgraph [model.safetensors...]
 */
#include <kiln/kiln.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program where a call failed. */
static void check(kiln_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s\n", kiln_status_code_name(status), kiln_status_message(status));
  exit(1);
}

/* A tensor for an input of fixed sizes: small numbers, which are good indices as well. */
static kiln_tensor make_input(const kiln_value_info* info) {
  size_t count = 1;
  for (int32_t d = 0; d < info->ndim; ++d) count *= (size_t)info->sizes[d];
  kiln_tensor tensor = {NULL, info->sizes, info->strides, info->ndim, info->dtype, KILN_CPU, 0};
  tensor.data = calloc(count + 1, 8);
  for (size_t i = 0; i < count; ++i) {
    if (info->dtype == KILN_FLOAT32)
      ((float*)tensor.data)[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    if (info->dtype == KILN_INT64) ((int64_t*)tensor.data)[i] = rand() % 2;
  }
  return tensor;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: bert GRAPH [WEIGHTS...]\n");
    return 2;
  }
  kiln_client* client;
  kiln_graph* graph;
  kiln_program* program;
  kiln_weights* weights;
  kiln_compile_info compiled = KILN_COMPILE_INFO_INIT;
  check(kiln_client_create(NULL, &client));
  check(kiln_graph_load(argv[1], &graph));
  check(kiln_compile(client, graph, NULL, &program, &compiled));
  printf("%s in %.0f ms\n", compiled.source, compiled.fetch_ms + compiled.compile_ms);

  const size_t num_inputs = kiln_program_num_inputs(program);
  const size_t num_outputs = kiln_program_num_outputs(program);
  kiln_tensor* inputs = calloc(num_inputs, sizeof(kiln_tensor));
  void** values = calloc(num_inputs, sizeof(void*));
  kiln_output* outputs = calloc(num_outputs, sizeof(kiln_output));
  for (size_t i = 0; i < num_inputs; ++i) {
    kiln_value_info info;
    check(kiln_program_input(program, i, &info));
    inputs[i] = make_input(&info);
    values[i] = inputs[i].data;
  }
  size_t bound = 0;
  check(kiln_weights_load((const char* const*)argv + 2, (size_t)argc - 2, &weights));
  check(kiln_weights_bind(weights, graph, inputs, num_inputs, &bound));
  printf("%zu of %zu inputs from files\n", bound, num_inputs);
  check(kiln_program_run(program, inputs, num_inputs, outputs, num_outputs, NULL));
  for (size_t i = 0; i < num_outputs; ++i) {
    printf("output %zu: %g ...\n", i, ((const float*)outputs[i].data)[0]);
  }
  kiln_outputs_release(outputs, num_outputs);
  for (size_t i = 0; i < num_inputs; ++i) free(values[i]);
  free(values);
  free(inputs);
  free(outputs);
  kiln_program_destroy(program);
  kiln_weights_destroy(weights);
  kiln_graph_destroy(graph);
  kiln_client_destroy(client);
  return 0;
}
