// "overloaded"
