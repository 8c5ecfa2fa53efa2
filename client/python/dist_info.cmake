# Metadata that lets the package in the build tree register its entry point, as an installed one does.
file(MAKE_DIRECTORY ${OUTPUT})
file(WRITE ${OUTPUT}/METADATA "Metadata-Version: 2.1\nName: kiln-torch\nVersion: ${VERSION}\n")
file(WRITE ${OUTPUT}/entry_points.txt
     "[torch_dynamo_backends]\nkiln = kiln_torch.options:kiln_backend\n")
