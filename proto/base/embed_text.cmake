# Writes OUTPUT, a C++ source that defines the function NAME in NAMESPACE returning the text of INPUTS
# joined. A string literal of more than 64 KB is not portable, so the text is cut into pieces.
set(body "")
foreach(input IN LISTS INPUTS)
  file(READ "${input}" text)
  while(NOT text STREQUAL "")
    string(LENGTH "${text}" length)
    if(length GREATER 12000)
      string(SUBSTRING "${text}" 0 12000 piece)
      string(SUBSTRING "${text}" 12000 -1 text)
    else()
      set(piece "${text}")
      set(text "")
    endif()
    string(APPEND body "    R\"KILN_TEXT(${piece})KILN_TEXT\",\n")
  endwhile()
endforeach()
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"

#include <string>

namespace ${NAMESPACE} {

absl::string_view ${NAME}() {
  static const char* const pieces[] = {
${body}  };
  static const std::string* const text = [] {
    auto* joined = new std::string;
    for (const char* piece : pieces) joined->append(piece);
    return joined;
  }();
  return *text;
}

}  // namespace ${NAMESPACE}
")
