# Writes OUTPUT, a C++ source that defines the function NAME in NAMESPACE returning the text of INPUTS
# joined. It is one literal, of pieces that compilers read: a process that asks for the text copies
# nothing, as those that are forked for one kernel do.
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
    string(APPEND body "\n    R\"KILN_TEXT(${piece})KILN_TEXT\"")
  endwhile()
endforeach()
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"

namespace ${NAMESPACE} {

absl::string_view ${NAME}() {
  static constexpr char text[] = \"\"${body};
  return {text, sizeof(text) - 1};
}

}  // namespace ${NAMESPACE}
")
