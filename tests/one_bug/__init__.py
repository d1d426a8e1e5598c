"""Publishers with one bug each, and legal ones that look odd, for `zeh-spark check`.

`publisher` has the correct one. A bug or an oddity is a class that changes one method of it; its
docstring says what it does. `BUGS` in `bugs_of_cursors` and `bugs_of_answers` names the rule that
has to tell of each; `ODDITIES` in `oddities` must raise no alarm.
"""
